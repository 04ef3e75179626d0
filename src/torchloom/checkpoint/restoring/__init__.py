"""Restoring a state.

`deciding` and `choosing` pick it, `loading` brings its images, `restore` and `rollback` give it back.
"""
