"""Numbers as people read them."""

import pytest

from hf_efficient import text

TEXTS = {
    "count": {
        0: "0",
        999_999: "999,999",
        1_000_000: "1.00 million",
        134_515_008: "134.52 million",
        8_030_261_248: "8.03 billion",
    },
    "seconds": {0.04: "0.0 s", 59.94: "59.9 s", 59.96: "1 min 00 s", 185: "3 min 05 s", 3599.6: "1 h 00 min"},
    "share": {0.0350123: "3.5%", 0.000712: "0.0712%"},
    "flops": {950: "950 ", 999.6: "1 k", 1_234_567: "1.23 M", 472e9: "472 G", 12.34e12: "12.3 T", 2e18: "2 E"},
    "clock": {0: "0:00", 42.4: "0:42", 59.6: "1:00", 725: "12:05", 9065: "2:31:05", 360000: "100:00:00"},
    "short_count": {0.4: "0", 950: "950", 999.6: "1.00k", 12_345: "12.3k", 123_456: "123k", 1.24e6: "1.24M"},
    "short_seconds": {4.12e-4: "412 µs", 3.05e-3: "3.05 ms", 0.0812: "81.2 ms", 1.25: "1.25 s", 12.3: "12.3 s"},
    "size": {512: "512 B", 3482: "3.4 KiB", 1_299_227_607: "1.21 GiB"},
    "usd": {0: "$0.00", 0.00031: "$0.00031", 0.0199: "$0.020", 0.42: "$0.42", 1234.5: "$1,234.50"},
    "kilowatt_hours": {0: "0 Wh", 126: "0.035 Wh", 44_280: "0.0123 kWh", 16_200_000: "4.5 kWh", 4.428e9: "1,230 kWh"},
    "grams": {0.02129: "0.0213 g", 5.9: "5.9 g", 999: "999 g", 1213: "1.21 kg"},
}


@pytest.mark.parametrize(("name", "texts"), TEXTS.items(), ids=TEXTS)
def test_a_number_as_people_read_it(name, texts):
    assert {number: getattr(text, name)(number) for number in texts} == texts
