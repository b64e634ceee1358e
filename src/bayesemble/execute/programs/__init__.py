"""Steps as straight-line programs: the operations that a step is made of, recorded once and then repeated."""
