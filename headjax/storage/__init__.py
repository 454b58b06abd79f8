"""Files and folders: paths and buckets, atomic writing, checksums, locks, saved arrays, failures of the machine."""
