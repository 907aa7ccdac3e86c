"""Small networks that really train, on data of scikit-learn: the demo's jobs, by the library.

Run one with `python -m loadmaster.demo.convnet` (or `recurrent`, `dense`).
"""

import os

# Before numpy is imported: several trainers share a few cores, and threads of linear algebra would
# only get in each other's way.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
