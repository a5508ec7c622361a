"""The independent checker: it imports none of the other packages and trusts nothing that a bundle says."""
