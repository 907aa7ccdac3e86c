"""The demo: eight real training jobs on emulated GPUs, shaped like the validation of the ANDREAS
paper (Table V).
"""
