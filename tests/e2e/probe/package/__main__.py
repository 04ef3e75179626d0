import sys

from . import __doc__ as about
from .part import WORD

print(about, WORD, sys.argv[1:], __name__, __package__, __spec__.name, sys.path[0])
if "fail" in sys.argv:
    raise RuntimeError(WORD)
