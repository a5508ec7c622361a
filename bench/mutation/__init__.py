"""Mutation tests: a package with one change of its syntax tree, and whether a test notices.

`operators` changes a tree, `sites` lists the mutants of a package by names that survive other changes,
`lines` learns which lines a test executes, `processes` runs what may hang or crash, `judging` tries the
mutants, `report` counts.
"""
