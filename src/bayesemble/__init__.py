"""bayesemble turns any PyTorch network into a Bayesian ensemble.

The public names are listed in `__init__.pyi`; each is imported when it is first used, so that the command line
answers at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
