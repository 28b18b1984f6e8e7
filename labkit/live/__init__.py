"""A run while it goes on, and after its end: one model of what is shown, and thin views of it.

`LiveModel` folds events into what is shown; `FollowedRun` feeds one from a run's folder. Views paint a model and
nothing else: `terminal` for terminals, `page` for browsers, `labkit.notebook.views` for notebooks; the last two have
the same scripts. To show something new: fold it in a part of the model, tell it in `feeds`, paint it in a script and
in `terminal`.
"""
