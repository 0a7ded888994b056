"""A recipe and the description of a cluster in, the job of Slurm, SkyPilot or Kubernetes out, as text.

``description`` and ``load``: the cluster. ``job``: both together, checked. ``slurm``, ``skypilot``, ``kubernetes``: a
job's text, each around the ``node_script`` that every machine runs. ``roll_call``: what a machine checks before it
trains. ``submission``: the command that takes the text.
"""
