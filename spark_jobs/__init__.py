"""Everything that runs on Spark. Entry points end in _job.py."""
