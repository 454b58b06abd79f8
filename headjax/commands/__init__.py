"""The commands of the `headjax` command line, one file each: arguments, a call into the library, a `CommandResult`."""
