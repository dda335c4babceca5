"""How right a detector was: the truth of a run beside what it told. Pure; knows neither operators nor simulation."""
