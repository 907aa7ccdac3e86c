"""Studies: policies by seeds, run in processes of their own."""
