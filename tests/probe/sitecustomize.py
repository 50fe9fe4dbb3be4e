"""On PYTHONPATH of the processes of an engine: an operation `probe`, which does what tests of engines want of a task."""

import os

import dfc.jobs.operations as operations

operations.__path__.append(os.path.dirname(__file__))
operations.OPERATIONS = (*operations.OPERATIONS, "probe")
