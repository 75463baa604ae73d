"""From a configuration to finished results: plan, train, execute, audit."""
