"""Where jobs run: in this process, in a pool of processes, on Ray, on Slurm."""
