"""The command line: `headwater up`, `kafka`, `edge`, `topics`, `nodes`, `doctor`."""
