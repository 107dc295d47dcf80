"""What ``tinker train`` does: the plan of a run, its steps, where it can be resumed, and what it
reports.
"""
