"""The page in a real browser: MQTT over WebSocket, under the Content-Security-Policy of the edge."""

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from aiohttp import web
from support.browser import Page, running_browser
from support.edges import http_address, memory_edge, mqtt_address, until
from support.mosquitto import Mosquitto

from edge.client import MqttClient
from edge.page import page_files

pytestmark = pytest.mark.peers("chromium")

POLICY = "default-src 'self'; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'"


@pytest.fixture
async def page_url() -> AsyncIterator[str]:
    async def serve(request: web.Request) -> web.StreamResponse:
        found = page_files().get("/" + request.match_info["path"])
        if found is None:
            raise web.HTTPNotFound
        path, content_type = found
        return web.FileResponse(path, headers={"Content-Security-Policy": POLICY, "Content-Type": content_type})

    application = web.Application()
    application.add_routes([web.get("/{path:.*}", serve)])
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}/"
    await runner.cleanup()


@pytest.fixture
async def page(mosquitto: Mosquitto, page_url: str, tmp_path: Path) -> AsyncIterator[Page]:
    async with running_browser(tmp_path / "profile") as page:
        await page.open(f"{page_url}?broker=ws://127.0.0.1:{mosquitto.websocket_port}/mqtt")
        await page.until("document.querySelector('#connection')?.dataset.state === 'connected'")
        yield page
        assert page.errors == []


@pytest.mark.slow
async def test_everything_that_arrives_is_shown(page: Page, mosquitto: Mosquitto) -> None:
    async with MqttClient("127.0.0.1", mosquitto.port, "feeder") as feeder:
        feeder.publish("sensors/weather/JFK", orjson.dumps({"device": "JFK", "temp": 41.0, "pressure": 1012}), qos=1)
        movement = {"event": "arrival", "airport": "LAX", "position": [33.9, -118.4], "device": "N1", "flight": "B61"}
        movement |= {"origin": "JFK", "destination": "LAX", "delay_min": -4}
        feeder.publish("sensors/aircraft/N1/movement", orjson.dumps(movement), qos=1)
        result = {"id": "w1", "device": "weather/JFK", "metric": "temp", "count": 3, "min": 1, "mean": 2, "max": 3}
        result |= {"window_start": "2026-01-01T00:00:00Z", "window_end": "2026-01-01T00:00:10Z"}
        feeder.publish("analytics/stats/10s/temp/weather/JFK", orjson.dumps(result), qos=1)
        demo = {"published": 12345, "delivered": 12344, "lost": 1, "duplicated": 0, "p50_ms": 2.5, "p99_ms": None}
        demo |= {
            "elapsed_s": 5,
            "seconds": 10,
            "speed": 17280,
            "simulated_at": "2013-01-01T17:00:00Z",
            "is_over": False,
        }
        edges = [{"node": "edge-0", "connections": 7, "messages_received": 1, "messages_sent": 1}]
        feeder.publish("demo/status/run", orjson.dumps({**demo, "edges": edges}), qos=1)
        await page.until("document.querySelector('#windows').textContent === '1'")
        await page.until("document.querySelector('#devices').textContent === '2'")
        await page.until("document.querySelector('#legend b')?.textContent === '41.0'")
        await page.until("document.querySelector('#movements').textContent.includes('4 min early')")
        await page.until("document.querySelector('#spark').textContent.includes('weather/JFK')")
        await page.until("document.querySelector('#edges').textContent.includes('edge-0')")
        await page.until("document.querySelector('#demo-published').textContent === '12,345'")
        assert await page.evaluate("document.querySelector('#demo-lost').className") == "bad"
        assert await page.evaluate("document.querySelectorAll('.plot > .empty:not([hidden])').length") == 1  # one stat


@pytest.mark.slow
async def test_any_filter_can_be_watched_and_any_message_published(page: Page, mosquitto: Mosquitto) -> None:
    client = MqttClient("127.0.0.1", mosquitto.port, "listener")
    inbox = client.inbox()
    async with client:
        await client.subscribe("greetings/#", qos=1)
        await page.evaluate("void (document.querySelector('#filter').value = 'a#')")
        await page.evaluate("document.querySelector('#subscribe').requestSubmit()")
        assert "stands alone" in await page.evaluate("document.querySelector('#form-note').textContent")
        await page.evaluate("void (document.querySelector('#filter').value = 'greetings/+')")
        await page.evaluate("document.querySelector('#subscribe').requestSubmit()")
        await page.until("document.querySelector('#form-note').textContent.startsWith('Subscribed')")
        await page.evaluate("void (document.querySelector('#publish-name').value = 'greetings/you')")
        await page.evaluate("void (document.querySelector('#publish-payload').value = 'hello')")
        await page.evaluate("document.querySelector('#publish').requestSubmit()")
        assert (await inbox.get()).payload == b"hello"
        await client.publish("greetings/bytes", b"\x00\xff\xfe", qos=1)  # type: ignore[misc]
        await page.until("document.querySelector('#messages').textContent.includes('00 ff fe')")
        assert "hello" in await page.evaluate("document.querySelector('#messages').textContent")
        await page.evaluate("document.querySelector('#filters button').click()")
        await page.until("document.querySelector('#filters').children.length === 0")


@pytest.mark.slow
async def test_no_connection_is_said_and_tried_again(page_url: str, tmp_path: Path) -> None:
    async with running_browser(tmp_path / "profile") as page:
        await page.open(page_url)  # which serves no /mqtt
        await page.until("document.querySelector('#connection')?.dataset.state === 'waiting'")
        # a try may be over within a millisecond, so each change of the state is written down
        await page.evaluate(
            "globalThis.states = []; void new MutationObserver("
            "() => states.push(document.querySelector('#connection').dataset.state)"
            ").observe(document.querySelector('#connection'), { attributes: true })"
        )
        assert "No connection" in await page.evaluate("document.querySelector('#trouble').textContent")
        await page.until("states.includes('connecting')")


@pytest.mark.slow
async def test_no_sideways_scrolling_on_a_telephone_and_both_themes(page: Page) -> None:
    await page.command("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=2, mobile=True)
    await page.until("innerWidth === 390")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    before = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.evaluate("document.querySelector('#theme').click()")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.slow
async def test_the_slider_replays_the_log_into_the_chart_and_alerts_arrive(tmp_path: Path) -> None:
    """On an edge: what was published before the page was there comes by `$replay`."""
    async with memory_edge() as node, MqttClient(*mqtt_address(node), "feeder") as feeder:
        for number in range(30):
            await feeder.publish("sensors/weather/JFK", orjson.dumps({"temp": 40.0 + number}), qos=1)  # type: ignore[misc]
        host, port = http_address(node)
        async with running_browser(tmp_path / "profile") as page:
            await page.open(f"http://{host}:{port}/")
            await page.until("document.querySelector('#connection')?.dataset.state === 'connected'")
            await until(lambda: node.services.table.statistics()["subscriptions"] >= 5, "the page has subscribed")
            alert = {"id": "e1", "kind": "range", "device": "weather/JFK", "metric": "temp", "value": 99.0}
            alert |= {"since": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:00:00Z", "reason": "above 90"}
            for state in ("raised", "cleared"):
                alerts = feeder.publish(
                    "analytics/alerts/range/weather/JFK", orjson.dumps(alert | {"state": state}), qos=1
                )
                assert alerts is not None
                await alerts
                await page.until(f"document.querySelector('#alerts').textContent.includes('{state}')")
            await feeder.publish("sensors/weather/JFK", orjson.dumps({"temp": 77.0}), qos=1)  # type: ignore[misc]
            await page.until("document.querySelector('#legend b')?.textContent === '77.0'")
            await page.evaluate("void (document.querySelector('#span').value = '30')")
            for event in ("input", "change"):
                await page.evaluate(f"void document.querySelector('#span').dispatchEvent(new Event('{event}'))")
            await page.until("document.querySelector('#span-note').textContent === '31 messages replayed from Kafka'")
            assert await page.evaluate("document.querySelector('#span-shown').textContent") == "30 min"
            assert page.errors == []
