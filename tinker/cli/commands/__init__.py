"""The commands: a module, or a package, for each group. They are imported when they are run or
asked for help.
"""
