from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "tests.contrib.shop"
    label = "shop"
