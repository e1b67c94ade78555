"""What outlives a process and is shared between workers: `base` says what that is, `memory` is one for one process."""
