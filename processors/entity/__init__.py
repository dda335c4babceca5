"""EntityOperator: what nodes, switches and storage servers tell, as conditions with a beginning and an end."""
