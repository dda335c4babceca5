"""Which faults befall which clusters: drawn, with their grounds and their histories, or days on which all is well."""
