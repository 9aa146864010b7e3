"""``python -m bigiron``: what ``inv`` hands over to."""

import sys

from bigiron.cli import main

sys.exit(main())
