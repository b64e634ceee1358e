"""The words everyone speaks: members, leaves, seeds by name, settings, errors."""
