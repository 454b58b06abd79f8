"""`python -m headjax` is the command `headjax`."""

from headjax.cli import main

raise SystemExit(main())
