"""Links between ranks: `delay_matrix` and `meeting` measure them, `pacing` slows them on purpose."""
