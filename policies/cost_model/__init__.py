"""Jobs x configurations of one round as arrays, with what each costs: energy and tardiness."""
