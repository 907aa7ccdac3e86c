"""Batch jobs dispatched by constraint programming: PCP'19, HCP'19 and PCP'20."""
