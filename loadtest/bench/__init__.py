"""`make bench`: each row of the speed and memory table, measured beside nginx where the table says so."""
