"""What makes an audit believable: floors, controls, flags, evidence levels and one verdict."""
