"""The ground that every layer stands on: domain values, errors, configuration and stored records.

Imports nothing of ``actors``, ``policies``, ``devices`` or the rest of ``fleet_tune``, and loads neither ray, torch nor
tvm. ``domain``, ``sketch``, ``search_task``, ``task_data``, ``device_state``, ``results`` and ``errors`` are values;
``config`` has what users write (fleet file, request), ``records`` what is kept in files.
"""
