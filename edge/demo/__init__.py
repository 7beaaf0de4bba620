"""The demo: real weather and flights of 2013, replayed by thousands of MQTT devices through two edges, Kafka and Spark.

``dataset`` and ``schedule`` decide what is sent and when, ``ledger`` what was lost; all three are pure. ``fleet`` and
``observers`` are the MQTT clients, ``run`` ties them to a cluster, ``display`` is what a person sees.
"""
