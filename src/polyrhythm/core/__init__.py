"""Pure decisions: functions of (state, event, now). No clock, socket, thread, torch or randomness."""
