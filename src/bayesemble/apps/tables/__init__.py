"""Tables: from a CSV to predictions with error bars."""
