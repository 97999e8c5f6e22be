"""What each tool does once it is allowed to: `act` returns the event to journal, `answer` what the agent is told."""
