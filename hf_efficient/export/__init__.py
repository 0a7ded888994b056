"""A trained model in the form that other programs run, and how far it is from the model that was trained."""
