"""Several ``whichrank run`` of one job: where its nodes meet, which of them judges, what they send each other."""
