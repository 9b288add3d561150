"""Pure: where a query is and what comes next."""
