"""From an incident's advice to acts, or to why there are none: what hooks and the action executor speak of."""
