/* A disk that fills up, or can no longer be written to, from a chosen operation on. Preloaded by tests/slow/faults.py.

   Operations of a process below one folder are counted once `fault_arm` has been called. From the chosen number on they
   fail with an error number: all that change something where `everything` is set (a disk mounted read-only), else those
   that need room (a full disk, which still renames and deletes). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t length;
static long first;
static int code, all;
static atomic_long seen, failed;
static atomic_int armed;

void fault_arm(const char *path, long at, int error, int everything) {
    strncpy(folder, path, sizeof folder - 1);
    length = strlen(folder);
    first = at, code = error, all = everything;
    seen = failed = 0;
    armed = 1;
}

/* Return how many operations have failed. */
long fault_disarm(void) {
    armed = 0;
    return failed;
}

/* Return how many operations there were that the fault could hit. */
long fault_seen(void) { return seen; }

static int below(int at, const char *path) {
    char link[64], whole[2 * PATH_MAX] = "";
    if (path == NULL || path[0] != '/') {
        if (at == AT_FDCWD) {
            if (getcwd(whole, PATH_MAX) == NULL) return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t size = readlink(link, whole, PATH_MAX - 1);
            if (size < 0) return 0;
            whole[size] = 0;
        }
        if (path != NULL) strcat(whole, "/");
    }
    if (path != NULL) strncat(whole, path, PATH_MAX - 1);
    return strncmp(whole, folder, length) == 0 && (whole[length] == '/' || whole[length] == 0);
}

static int fails(int at, const char *path, int needs_room) {
    if (!armed || !(needs_room || all)) return 0;
    int before = errno;
    int here = below(at, path);
    errno = before;
    if (!here || atomic_fetch_add(&seen, 1) + 1 < first) return 0;
    atomic_fetch_add(&failed, 1);
    errno = code;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

static int opens(int at, const char *path, int flags) {
    if ((flags & O_CREAT) && faccessat(at, path, F_OK, 0) != 0) return fails(at, path, 1);
    return (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) ? fails(at, path, 0) : 0;
}

#define MODE va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, int); va_end(rest)
#define OPEN(name) int name(const char *path, int flags, ...) { \
    MODE; REAL(name); return opens(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    MODE; REAL(name); return opens(at, path, flags) ? -1 : real(at, path, flags, mode); }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define FUNCTION(type, name, parameters, at, path, needs_room, ...) type name parameters { \
    REAL(name); return fails(at, path, needs_room) ? -1 : real(__VA_ARGS__); }
FUNCTION(ssize_t, write, (int file, const void *data, size_t size), file, NULL, 1, file, data, size)
FUNCTION(ssize_t, pwrite, (int file, const void *data, size_t size, off_t start), file, NULL, 1, file, data, size, start)
FUNCTION(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t start), file, NULL, 1, file, data, size, start)
FUNCTION(ssize_t, writev, (int file, const struct iovec *data, int count), file, NULL, 1, file, data, count)
FUNCTION(int, fsync, (int file), file, NULL, 1, file)
FUNCTION(int, fdatasync, (int file), file, NULL, 1, file)
FUNCTION(int, ftruncate, (int file, off_t size), file, NULL, 1, file, size)
FUNCTION(int, ftruncate64, (int file, off64_t size), file, NULL, 1, file, size)
FUNCTION(int, mkdir, (const char *path, mode_t mode), AT_FDCWD, path, 1, path, mode)
FUNCTION(int, mkdirat, (int at, const char *path, mode_t mode), at, path, 1, at, path, mode)
FUNCTION(int, link, (const char *from, const char *to), AT_FDCWD, to, 1, from, to)
FUNCTION(int, symlink, (const char *from, const char *to), AT_FDCWD, to, 1, from, to)
FUNCTION(int, rename, (const char *from, const char *to), AT_FDCWD, to, 0, from, to)
FUNCTION(int, renameat, (int at, const char *from, int there, const char *to), there, to, 0, at, from, there, to)
FUNCTION(int, renameat2, (int at, const char *from, int there, const char *to, unsigned int flags), there, to, 0, at, from,
         there, to, flags)
FUNCTION(int, unlink, (const char *path), AT_FDCWD, path, 0, path)
FUNCTION(int, unlinkat, (int at, const char *path, int flags), at, path, 0, at, path, flags)
FUNCTION(int, rmdir, (const char *path), AT_FDCWD, path, 0, path)
FUNCTION(int, chmod, (const char *path, mode_t mode), AT_FDCWD, path, 0, path, mode)
FUNCTION(int, fchmod, (int file, mode_t mode), file, NULL, 0, file, mode)
