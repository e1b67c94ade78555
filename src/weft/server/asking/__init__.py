"""Ask the client during a call: elicitation, sampling, roots; and run functions once per call."""
