"""Demo: eight real training jobs on emulated GPUs, after ANDREAS' Table V."""
