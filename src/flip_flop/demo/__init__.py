"""The demo's main job, and how its embedded model was made."""
