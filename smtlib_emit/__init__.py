"""Terms, op semantics for emission, and canonical SMT-LIB text (``docs/certificate.md``)."""
