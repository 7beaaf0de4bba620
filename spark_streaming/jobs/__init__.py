"""The jobs, one file each: a thin main around pure transforms, run by `headwater spark run <job>`."""
