"""What only the tests of this repository need: the judge of the contract, recordings, servers under
test and their drivers.
"""
