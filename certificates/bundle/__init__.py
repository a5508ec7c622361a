"""The bundle of certificates on disk, and its report."""
