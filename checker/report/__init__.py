"""The verdict in words: nothing here decides anything."""
