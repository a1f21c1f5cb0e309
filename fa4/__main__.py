"""`python -m fa4`."""

import sys

from fa4.cli import main

sys.exit(main())
