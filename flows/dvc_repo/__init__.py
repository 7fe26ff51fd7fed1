"""What is known of DVC's own files. Not called `dvc`: Prefect puts flows/ itself on the import path of a worker."""
